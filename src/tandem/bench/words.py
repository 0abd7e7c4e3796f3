"""Word pools of the bundled tasks: what names and values of the recall task are made of.

Every word is common enough to become one token of the bundled tokenizer, so a fact costs few
tokens and a list of 4,000 tokens holds several hundred of them. The pools do not overlap.
"""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES: tuple[str, ...] = _listed(
    """
    amber ancient bitter blue bold brave brief bright broken bronze brown calm clean clear clever
    cold copper cosy curious dark deep distant double dry dusty early eager empty even faint fair
    famous fancy fast fine firm flat fresh frozen gentle giant glad golden grand great green grey
    happy hard heavy hidden high hollow honest humble icy inner iron jolly keen kind large last
    late lazy light little lone long loud low lucky mellow mild misty modern narrow neat new noble
    odd old open orange outer pale patient pink plain polite proud purple quick quiet rapid rare
    red rich ripe rough round royal rusty sharp short silent silver simple slow small smooth soft
    solid spare steady stone strong sweet swift tall tender thick thin tiny tired true upper velvet
    violet warm white wide wild wise wooden yellow young
    """
)

NOUNS: tuple[str, ...] = _listed(
    """
    anchor apple arrow badge badger barrel basket beacon bear beaver bell bench bird blanket boat
    book bottle bowl box branch brick bridge broom brush bucket button cabin cable camel camera
    candle canoe car carpet cart castle cat chain chair chest circle clock cloud coat coin compass
    cottage cow crane crow crown cup curtain deer desk dog donkey door dove dragon drum duck eagle
    engine falcon farm feather fence ferry field flag flute forest fork fountain fox frog garden
    gate giraffe glass glove goat goose hammer harbor harp hat hawk helmet hill horse hotel house
    island jacket jar kettle key kite kitten knife ladder lake lamp lantern lemon lion lock mango
    map market mask meadow mill mirror monkey moon motor mountain mouse needle nest notebook oak
    otter owl oven paddle panda paper parrot path pearl pencil piano pigeon pillow pilot planet
    plate pond pony postcard puppy rabbit radio ribbon ring robin rocket rope saddle sailor salmon
    scarf school seal shelf shell ship shoe shovel sofa spider spoon squirrel station statue
    stove swan table temple tent thread ticket tiger toad torch tower train tray truck trumpet
    tulip tunnel turtle umbrella valley vase violin wagon wallet walnut watch whale wheel window
    wolf zebra
    """
)

VALUES: tuple[str, ...] = _listed(
    """
    almond April autumn bacon bamboo banana barley basil beach bean berry bread breeze butter
    cabbage canyon carrot cedar celery cement cherry chess cinema circus clay clover coal cocoa
    coffee coral corn cotton cream creek crystal daisy dawn desert diamond dune dusk dust eleven
    emerald evening fern fire flame flour fog frost fruit fudge galaxy garlic ginger glue grape
    grass gravel hazel honey ice indigo ink ivory ivy jade jazz jelly June jungle juniper leather
    lilac lily lime linen magnet maple marble melon metal midnight milk mint Monday morning moss
    music mustard nectar night noon north nut oasis ocean olive onion opal opera orchid oxygen
    palm paprika peach peanut pear pepper pine plum pollen poppy potato prairie pumpkin quartz
    rain reef rice river rose ruby saffron salad salt sand sapphire satin shadow silk sky smoke
    snow soap soup south spice spring steam steel storm straw sugar summer Sunday sunset syrup tea
    thunder timber tomato topaz tropic vanilla vinegar water wave wax wheat wind wine winter wool
    """
)
