"""Which emoji become objects, where in the world they belong, and how big they are drawn.

A row is: group | homes | size | emoji. Emoji joined by `=` are the same kind in another look. Left out on purpose:
flags, symbols, faces of people, skin-tone and gender variants, weapons, and art that is cut off or hard to name.

Homes are places a backdrop can offer (see `backdrops`); size is the longer side as a share of the picture's.
"""

from __future__ import annotations

ROWS = """
animal  | land                     | .42 | 🐘 🦏 🦛 🦒 🦣 🦕 🦬
animal  | land                     | .37 | 🐎 🐄 🐂 🦓 🦖 🐃 🐅 🐆 🦍 🦧 🦘
animal  | land desert              | .35 | 🦙 🐐 🐏
animal  | desert                   | .37 | 🐪 🐫
animal  | land                     | .32 | 🐖 🐑 🫏 🐒 🐻 🦁 🐼 🐨
animal  | land snow                | .33 | 🦌 🦊 🐺
animal  | snow                     | .33 | 🐻‍❄️ 🐧
animal  | land road room sand snow | .30 | 🐕 🐈=🐈‍⬛
animal  | land                     | .24 | 🦡 🦝 🦔 🦨 🐿️ 🦫 🐓 🦃 🦚 🪿 🐸
animal  | land snow                | .22 | 🐇
animal  | land room                | .17 | 🐁
animal  | land desert              | .24 | 🐍 🦎
animal  | land sand deep           | .25 | 🐢
animal  | desert                   | .20 | 🦂
animal  | sand land                | .28 | 🦩
animal  | land                     | .18 | 🐌 🐛 🐞 🪲 🦗 🐤
animal  | night                    | .22 | 🦇
animal  | day                      | .20 | 🐝 🦋
animal  | sky                      | .27 | 🦅 🕊️
animal  | room land                | .24 | 🦜
animal  | sea land                 | .24 | 🦆 🦢
animal  | sea deep                 | .36 | 🐋=🐳 🐬
animal  | sea sand snow deep       | .28 | 🦭
animal  | deep                     | .32 | 🦈 🐙 🦑 🪼
animal  | deep                     | .24 | 🐟 🐠 🐡 🦐
animal  | deep sand                | .22 | 🦀 🦞
plant   | land road                | .42 | 🌳
plant   | land snow                | .42 | 🌲
plant   | sand                     | .42 | 🌴
plant   | snow room                | .38 | 🎄
plant   | desert                   | .36 | 🌵
plant   | room                     | .28 | 🪴
plant   | land table               | .24 | 🌷 🌹 🌼 🌻 🪻 🌺
plant   | land                     | .20 | 🍄 ☘️
plant   | room table               | .26 | 💐
plant   | deep                     | .26 | 🪸
fruit   | table                    | .24 | 🍇 🍊 🍋 🍌 🍍 🥭 🍎=🍏 🍐 🍑 🍒 🍓 🫐 🥝
fruit   | table sand               | .24 | 🍉 🥥
vegetable | table                  | .24 | 🍅 🥑 🍆 🥔 🥕 🌽 🌶️ 🫑 🥒 🥦 🧄 🧅
food    | table                    | .25 | 🍞 🥐 🥖 🥨 🥞 🧀 🍗 🍔 🍟 🍕 🌭 🥪 🌮 🥗 🍿 🍙 🍜 🍝 🍣 🥚 🍳
food    | table                    | .24 | 🍩 🍪 🎂 🍰 🧁 🥧 🍫 🍭 🍯
food    | table sand               | .24 | 🍦
drink   | table                    | .23 | 🥛 ☕ 🧃 🥤 🧋
vehicle | road                     | .34 | 🚌 🚑 🚒 🚓 🚕 🚚 🏎️ 🛵
vehicle | road desert              | .34 | 🚙 🛻 🏍️
vehicle | road land                | .33 | 🚗 🚜 🚲
vehicle | land                     | .38 | 🚂
vehicle | road                     | .27 | 🛴
vehicle | sea                      | .32 | ⛵ 🚤 🛥️ 🛳️
vehicle | sea sand                 | .32 | 🛶
vehicle | sky                      | .30 | ✈️ 🚁
toy     | sky                      | .27 | 🎈
thing   | sky                      | .30 | 🪂
vehicle | day                      | .30 | 🛩️
vehicle | night                    | .28 | 🚀 🛸
sky     | day snow-sky             | .26 | ☀️
sky     | day                      | .34 | 🌈
sky     | sky                      | .28 | ☁️
sky     | day snow-sky             | .28 | 🌧️
sky     | night                    | .24 | 🌙
sky     | night                    | .19 | ⭐ 🪐 ☄️
building | land road snow          | .40 | 🏠
building | land                    | .42 | 🏰 🛖
building | land snow desert        | .34 | ⛺
building | road                    | .42 | 🏫 🏥
building | land road               | .42 | ⛪
building | land                    | .44 | 🎡 🎪
building | road                    | .36 | ⛲
person  | road land                | .36 | 🚴 🏃
person  | road land sand           | .34 | 🚶
person  | land sand room           | .28 | 🧘
person  | land room                | .34 | 💃 🤹
person  | land                     | .34 | 🏌️
person  | sand sea                 | .34 | 🏄
person  | snow                     | .32 | ⛷️ 🏂
person  | sea                      | .34 | 🏊 🚣
toy     | land road sand room      | .19 | ⚽
toy     | room                     | .19 | 🏀 🪀 🎲
toy     | sand land                | .18 | 🏐 🥏
toy     | room                     | .26 | 🧸 🪆
toy     | sky                      | .28 | 🪁
toy     | snow                     | .26 | 🛷 ⛸️
toy     | road                     | .26 | 🛹
toy     | snow                     | .34 | ⛄
instrument | room                  | .32 | 🎸 🎻 🪕 🎺 🎷 🥁 🪗
clothing | room                    | .24 | 👟 👢 🎩 🧢 🎒 👗 👖 👕 🧤
clothing | room snow               | .24 | 🧣
clothing | sand                    | .20 | 👒
clothing | table sand              | .20 | 🕶️
furniture | room                   | .36 | 🪑 🛏️ 🚪 🛁
thing   | room                     | .30 | 📺 🧹 🧺 🧳 🪜 ☎️
thing   | room snow                | .24 | 🎁
thing   | table room               | .22 | 📕=📗=📘=📙 🕯️ ⏰ 💻
thing   | table                    | .22 | 🫖 📷 🔑 🏆
thing   | room                     | .20 | 🧶
thing   | land table               | .26 | 🎃
thing   | sand room                | .24 | 🪣
thing   | sand                     | .36 | ⛱️
thing   | sand deep                | .18 | 🐚
thing   | sea                      | .24 | 🛟
thing   | deep                     | .28 | ⚓ 🤿
thing   | road                     | .34 | 🚦
thing   | road                     | .26 | 🚧 📫
thing   | land desert snow         | .24 | 🪨
thing   | land snow                | .22 | 🪵
thing   | desert                   | .26 | 🏺
"""

RENAMED = {
    "ewe": "sheep",
    "sauropod": "long-necked dinosaur",
    "water buffalo": "buffalo",
    "two-hump camel": "two-humped camel",
    "rhinoceros": "rhino",
    "hippopotamus": "hippo",
    "chipmunk": "squirrel",
    "baby chick": "chick",
    "bug": "caterpillar",
    "lady beetle": "ladybug",
    "cricket": "grasshopper",
    "honeybee": "bee",
    "blowfish": "pufferfish",
    "black cat": "cat",
    "spouting whale": "whale",
    "deciduous tree": "tree",
    "evergreen tree": "fir tree",
    "blossom": "daisy",
    "tangerine": "orange",
    "red apple": "apple",
    "green apple": "apple",
    "kiwi fruit": "kiwi",
    "ear of corn": "corn",
    "hot pepper": "chili pepper",
    "baguette bread": "baguette",
    "cheese wedge": "cheese",
    "poultry leg": "chicken leg",
    "french fries": "fries",
    "green salad": "salad",
    "steaming bowl": "noodles",
    "cooking": "fried egg",
    "shortcake": "slice of cake",
    "doughnut": "donut",
    "honey pot": "honey",
    "soft ice cream": "ice cream",
    "glass of milk": "milk",
    "hot beverage": "coffee",
    "beverage box": "juice",
    "cup with straw": "soda",
    "automobile": "car",
    "sport utility vehicle": "jeep",
    "delivery truck": "van",
    "fire engine": "fire truck",
    "racing car": "race car",
    "motor scooter": "scooter",
    "locomotive": "steam engine",
    "motor boat": "motorboat",
    "passenger ship": "cruise ship",
    "small airplane": "propeller plane",
    "cloud with rain": "rain cloud",
    "crescent moon": "moon",
    "ringed planet": "planet",
    "ferris wheel": "Ferris wheel",
    "person biking": "cyclist",
    "person running": "runner",
    "person in lotus position": "person doing yoga",
    "woman dancing": "dancer",
    "person juggling": "juggler",
    "person golfing": "golfer",
    "person surfing": "surfer",
    "person swimming": "swimmer",
    "person rowing boat": "rower",
    "flying disc": "frisbee",
    "game die": "die",
    "nesting dolls": "nesting doll",
    "snowman without snow": "snowman",
    "running shoe": "sneaker",
    "woman’s boot": "boot",
    "woman’s hat": "straw hat",
    "billed cap": "cap",
    "closed book": "book",
    "green book": "book",
    "blue book": "book",
    "orange book": "book",
    "wrapped gift": "present",
    "luggage": "suitcase",
    "jack-o-lantern": "pumpkin",
    "umbrella on ground": "beach umbrella",
    "spiral shell": "seashell",
    "ring buoy": "life ring",
    "vertical traffic light": "traffic light",
    "construction": "road barrier",
    "closed mailbox with raised flag": "mailbox",
    "wood": "log",
    "amphora": "vase",
}
"""Names of the emoji package (plain words, no underscores) that people would not write, and what they write."""

COLOURLESS_GROUPS = frozenset({"food", "drink", "person"})
"""Nobody speaks of a yellow pizza; the people of OpenMoji are yellow to be of no colour at all."""

COLOURLESS = frozenset(
    {
        *("dog", "camel", "two-humped camel", "giraffe", "lion", "leopard", "zebra", "tiger", "peacock", "ladybug"),
        *("pineapple", "watermelon", "coconut", "kiwi", "avocado", "onion", "soccer ball", "volleyball", "trophy"),
        *("trumpet", "saxophone", "banjo", "key", "alarm clock", "church", "hospital", "castle", "die", "steam engine"),
        *("rain cloud", "straw hat", "coral", "broom", "orange", "comet", "traffic light"),
        *("sailboat", "speedboat", "motorboat", "cruise ship", "fir tree", "tree", "palm tree", "Christmas tree"),
    }
)
"""Kinds whose one dominant colour a person would not mention, or would call by another word."""
